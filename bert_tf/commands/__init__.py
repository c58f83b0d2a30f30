"""One module per script: parses flags, then makes one call.

Each imports what it calls inside `main`, so that --help answers at once.
"""
