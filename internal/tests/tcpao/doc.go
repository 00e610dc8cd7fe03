// Package tcpao tests sessions that TCP-AO signs, on a kernel that has it: CONFIG_TCP_AO, from Linux 6.7 on. Debian has
// it since its kernel 7: lab vmtest -newest -bird.
package tcpao
