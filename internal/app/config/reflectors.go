package config

// Reflectors says whether and how the nodes agree on route reflectors.
type Reflectors struct {
	Automatic bool `env:"TORTIE_AUTOMATIC_REFLECTORS" default:"false" help:"true lets the nodes agree on route reflectors; the same on all nodes, see docs/reflectors.md."`
	Above     int  `env:"TORTIE_REFLECTORS_ABOVE" default:"100" is:"4-100000" help:"Nodes from which on there are reflectors; at three quarters the mesh comes back."`
	Count     int  `env:"TORTIE_REFLECTORS" default:"3" is:"2-20" help:"Number of reflectors."`
}
