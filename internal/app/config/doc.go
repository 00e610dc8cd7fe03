// Package config turns what people write (environment variables) into validated values.
//
// Each program has a struct of settings. The tags of a field are the variable, its default, what it may be (see
// problems.set) and what it means; what follows from several variables has none. Nothing else in the project reads the
// environment. The package never guesses: a value that it cannot use is an error that names the variable, the value and
// what would be right.
package config
