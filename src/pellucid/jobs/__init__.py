"""One file a job: what the command line can ask for, as functions that know no shell."""
