"""How the bundled specimen was trained, and what norm alignment does to it. Not in the wheel."""
