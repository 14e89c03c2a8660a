"""The command line. Each file is a room: browse (list, show), trial (try, tour, report), data, doctor, use."""
