// Package vmproto is what the launcher of a virtual machine and the machine's first process agree on. It only holds names
// and data, for both sides link it.
package vmproto

// Places in the initial file system.
const (
	ConfigFile  = "/vm.json"
	ModulesDir  = "/modules"
	ModuleOrder = ModulesDir + "/order"
)

// RootTag is the tag of the shared file system that becomes the root.
const RootTag = "root"

// ChannelName is the name of the serial port over which the launcher's side runs commands.
const ChannelName = "tortie-lab"

// ResultDevice is the serial port that takes the result, so that nothing a program prints can be mistaken for it.
const ResultDevice = "/dev/ttyS1"

// ResultFormat is the line on ResultDevice; its value is the program's exit code.
const ResultFormat = "exit %d\n"

// Config says what a virtual machine does.
type Config struct {
	// Program is run with Args, Env and in Dir; when it ends, so does the machine.
	Program string
	Args    []string
	Env     []string
	Dir     string
	// SharedRoot makes the launcher's root directory the root, under a layer in memory that takes all writes. Otherwise
	// the initial file system stays.
	SharedRoot bool
	// Shares are directories of the launcher that can be written, by their tag.
	Shares map[string]string
}
