// Package config turns what people write (environment variables) into validated values.
//
// Each program has a raw struct, all strings with their default and meaning in tags, and a valid struct with real types.
// Nothing else in the project reads the environment. The package never guesses: a value that it cannot use is an error that
// names the variable, the value and what would be right.
package config
