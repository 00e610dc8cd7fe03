package config

import "time"

// Flows are the settings of flow records.
type Flows struct {
	Enabled  bool   `env:"TORTIE_FLOWS" default:"false" help:"true records which connections of pods are allowed and denied, by which policies, and what staged policies would do; needs TORTIE_POLICY auto or on."`
	Seconds  int    `env:"TORTIE_FLOWS_INTERVAL_SECONDS" default:"15" is:"1-300" help:"What flow records are about: connections are added up in as many seconds."`
	File     string `env:"TORTIE_FLOWS_FILE" default:"" help:"File on the agent's file system that flow records are also written to, as lines of JSON; empty: none."`
	FileSize int    `env:"TORTIE_FLOWS_FILE_MB" default:"50" is:"1-10000" help:"MB at which this file becomes FILE.1 and a new one begins."`
	OldFiles int    `env:"TORTIE_FLOWS_OLD_FILES" default:"3" is:"0-100" help:"How many of its predecessors stay."`
}

// Interval returns the time that one record covers.
func (f *Flows) Interval() time.Duration { return time.Duration(f.Seconds) * time.Second }
