"""The processes of one machine: how they are started, ended and looked at; the standby, from which tasks start sooner."""
