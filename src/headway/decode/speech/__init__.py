"""Speech decoding: windows of long recordings, CTC, transcript checks, word times and subtitles."""
