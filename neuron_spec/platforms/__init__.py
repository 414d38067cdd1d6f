"""Facts about machines and software releases, as data. No torch in here."""
