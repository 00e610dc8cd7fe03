// Package tests has no code: its folder holds the tests that look at the product from outside: programs are started as a node starts
// them, and API objects, routes of the kernel and packets are what is compared.
//
// The tests of a single package lie beside it.
package tests
