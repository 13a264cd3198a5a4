"""Import models from, and export them to, the formats of other programs: `headway import` and
`headway export`."""
