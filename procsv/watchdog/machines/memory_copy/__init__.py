"""Memory copy: who keeps the chief's newest snapshot on another machine, and how a coordinator gets it back."""
