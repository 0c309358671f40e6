"""Train a program under procsv: its sessions, loops and fits, their snapshots, and the restore."""
