// Package tests has no code. Its folder holds black-box tests of the product: they start programs as a node starts
// them, and compare API objects, kernel routes and packets.
//
// The tests of a single package are in that package.
package tests
