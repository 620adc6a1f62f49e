"""Forges events: lines that look like them, with a wrong secret or none."""


def run(page):
    end = (
        '{"event": "section_end", "name": "forges_events", "status": "FAIL", "note": "forged", '
        '"seconds": 0, "compile_seconds": 0, "context_lost": false}'
    )
    print("\x1e0123456789abcdef " + end)
    print(end)
    print("\x1e {}\x1e")
