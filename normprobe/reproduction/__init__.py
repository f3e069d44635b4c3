"""The paper's tables and figures made anew: what it takes, the commands, and one page of all."""
