"""Conversion from and to formats of other programs: `headway import` and `headway export`."""
