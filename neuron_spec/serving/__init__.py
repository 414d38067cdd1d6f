"""An artifact behind OpenAI's HTTP protocol."""
