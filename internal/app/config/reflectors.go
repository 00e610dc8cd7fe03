package config

// RawReflectors is the environment of the nodes' agreement on route reflectors, as it is written.
type RawReflectors struct {
	Automatic string `env:"TORTIE_AUTOMATIC_REFLECTORS" default:"false" help:"true lets the nodes agree on route reflectors; the same on all nodes, see docs/reflectors.md."`
	Above     string `env:"TORTIE_REFLECTORS_ABOVE" default:"100" help:"From how many nodes on there are reflectors; at three quarters the mesh comes back."`
	Count     string `env:"TORTIE_REFLECTORS" default:"3" help:"How many reflectors there are to be."`
}

// Reflectors says whether and how the nodes agree on route reflectors.
type Reflectors struct {
	Automatic    bool
	Above, Count int
}

func (p *problems) reflectors(raw RawReflectors) Reflectors {
	return Reflectors{
		Automatic: p.boolean("TORTIE_AUTOMATIC_REFLECTORS", raw.Automatic),
		Above:     p.integer("TORTIE_REFLECTORS_ABOVE", raw.Above, 4, 100_000),
		Count:     p.integer("TORTIE_REFLECTORS", raw.Count, 2, 20),
	}
}
