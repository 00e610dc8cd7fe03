// Package messages holds the test that keeps docs/troubleshooting.md and what the programs say in step. It has no code of its own.
package messages
