"""Types of what procsv publishes as JSON: journal lines, `status --json`, `report --json`.

The schemas in docs/schema/ are made from them.  A program may decode with them as well:

    msgspec.json.decode(line, type=procsv.report.published.journal_lines.JournalLine)

New events and new fields may be added; a reader skips what it does not know.
"""
