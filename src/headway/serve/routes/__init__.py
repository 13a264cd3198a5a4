"""Routes of the server, with one module for each API convention: OpenAI, LibreTranslate and
headway's own."""
