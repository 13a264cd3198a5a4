"""Pictures, videos and recordings that are made here, so that the truth about them is known."""
