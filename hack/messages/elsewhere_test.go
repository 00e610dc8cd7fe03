package messages

// Reasons for which a message is not on the page.
const (
	within  = "it never stands alone: an error that is on the page, or has a remedy of its own, is around it"
	inside  = "it is used inside the programs, which act on it, and reaches nobody"
	news    = "it says that something is well, or is so by intention"
	broken  = "only a fault of the programs makes it: it is for whoever mends them"
	refused = "a peer's fault, which the peer's operator must mend; node peers names the session"
)

// elsewhere are messages that are not on the page, with the reason.
var elsewhere = map[string]string{
	"... says ......":                                           within,
	"gave up after ...":                                         within,
	"BGP speaker is not started":                                inside,
	"BGP speaker is stopped":                                    inside,
	"a block can be reclaimed":                                  inside,
	"a prefix is longer than an address or is cut short":        refused,
	"a speaker keeps its AS number and its router ID":           inside,
	"address is not held":                                       inside,
	"already exists":                                            inside,
	"could not send to it within the hold time":                 within,
	"function left its goroutine without returning":             broken,
	"in use by another process":                                 within,
	"its Secret is not known while the API server is away":      within,
	"malformed netlink message":                                 broken,
	"malformed protocol buffer":                                 broken,
	"no entry can be finished now":                              inside,
	"no usable facts of the agent":                              inside,
	"clusterType stays as it is":                                within,
	"not a link name":                                           within,
	"the table changed while the kernel listed it":              inside,
	"not an UPDATE that can be rewritten":                       refused,
	"not for this reader":                                       inside,
	"not found":                                                 within,
	"not read yet":                                              inside,
	"path attribute is cut short":                               refused,
	"the container still has an interface":                      inside,
	"the release has no clearance":                              inside,
	"usage":                                                     inside,
	"BGP message could not be edited and was not sent":          broken,
	"BGP message of a peer could not be edited and was dropped": refused,
	"remove what a BGP peer was before":                         broken,
	"accept BGP connection":                                     within,
	"CalicoIsUp":                                                news,
	"OK":                                                        news,
	"Terminating":                                               news,
}
