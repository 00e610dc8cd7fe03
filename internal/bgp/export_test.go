package bgp

import "github.com/tortie-net/tortie/internal/bgp/relay"

// ForgetMD5 makes this process believe that the kernel can't sign TCP segments.
func ForgetMD5() { checkMD5 = func() error { return relay.ErrNoMD5 } }
