//! Passing sockets to another process over a Unix socket: not possible here, so there is nothing.
