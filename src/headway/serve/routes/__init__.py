"""Routes of the server, one module for each API convention: OpenAI, LibreTranslate and headway's
own."""
