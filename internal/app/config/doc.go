// Package config turns environment variables into validated values.
//
// Each program has a struct of settings. The tags of a field are the variable, its default, its valid forms (see
// problems.set) and its description; fields that derive from several variables have none. Nothing else in the project
// reads the environment. The package never guesses: an unusable value is an error that names the variable, the value
// and the valid forms.
package config
