//! Handshakes over nonblocking TCP.
