package config

import "time"

// Reflectors are the settings for automatic route reflectors.
type Reflectors struct {
	Automatic bool          `env:"TORTIE_AUTOMATIC_REFLECTORS" default:"false" help:"true makes nodes route reflectors, in place of the mesh; see docs/reflectors.md."`
	Above     int           `env:"TORTIE_REFLECTORS_ABOVE" default:"100" is:"4-100000" help:"Nodes from which on there are reflectors; below three quarters the mesh comes back."`
	Count     int           `env:"TORTIE_REFLECTORS" default:"3" is:"2-20" help:"Number of reflectors."`
	Pause     time.Duration `env:"TORTIE_REFLECTORS_PAUSE" default:"90s" is:"1s" help:"Time between two changes of reflectors: BGP's hold time."`
}
