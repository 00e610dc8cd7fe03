// The scanner for known vulnerabilities that hack/vulns runs: a module of its own, since its requirements are not those of the linters.
module github.com/tortie-net/tortie/hack/govulncheck

go 1.26.0

replace golang.org/x/telemetry => golang.org/x/telemetry v0.0.0-20260924152758-ed294f943157

tool golang.org/x/vuln/cmd/govulncheck

require (
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/telemetry v0.0.0-20261010193011-f71dc92da45e // indirect
	golang.org/x/tools v0.52.0 // indirect
	golang.org/x/vuln v1.9.0 // indirect
)
