package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func layout(lines ...string) Layout {
	var l Layout
	for _, line := range lines {
		l.add(line)
	}
	return l
}

func TestLayout(t *testing.T) {
	for what, c := range map[string]struct{ got, want Layout }{
		"v1 as systemd mounts it": {
			layout(
				"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
				"30 29 0:25 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755",
				"31 30 0:26 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate",
				"32 30 0:27 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd",
				"33 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:12 - cgroup cgroup rw,cpu,cpuacct",
				"34 30 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset,clone_children"),
			Layout{Hierarchies: []Hierarchy{
				{"/sys/fs/cgroup/systemd", []string{"none", "name=systemd"}},
				{"/sys/fs/cgroup/cpu,cpuacct", []string{"cpu", "cpuacct"}},
				{"/sys/fs/cgroup/cpuset", []string{"cpuset"}},
			}},
		},
		"v2": {
			layout("31 30 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"),
			Layout{V2: true, Hierarchies: []Hierarchy{{Mount: "/sys/fs/cgroup"}}},
		},
		"none": {layout("22 1 254:0 / / rw,relatime - ext4 /dev/vda rw", ""), Layout{}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}
