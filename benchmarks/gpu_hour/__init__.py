"""Parts of ``first_hour.py``. ``tables.py`` and ``records.py`` need regbot; the others need the standard library."""
