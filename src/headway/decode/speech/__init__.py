"""What only speech needs: windows of long recordings, CTC, guards, word times, subtitles."""
