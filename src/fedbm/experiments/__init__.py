"""The paper's tables and figures, and anyone's own grid, as runs: files → trials → runs → records."""
