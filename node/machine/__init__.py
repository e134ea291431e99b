"""Board and network card: firmware facts, Wake-on-LAN."""
