package localpg

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// defaults are for a server that may be lost with the machine, but not with its processes: what was committed is still
// there after a kill -9 of PostgreSQL. That is why synchronous_commit is not among them.
var defaults = map[string]string{
	"fsync":                      "off",
	"full_page_writes":           "off", // a process killed in mid-write leaves no torn page, only a power cut does
	"wal_level":                  "minimal",
	"max_wal_senders":            "0",
	"max_connections":            "200",
	"shared_buffers":             "128MB",
	"jit":                        "off",
	"dynamic_shared_memory_type": "mmap", // in the data directory, so that a SIGKILL leaves no segment in /dev/shm
}

// fixed settings make the server private. There is no socket: its path is limited to 107 bytes, TMPDIR is not.
var fixed = map[string]string{
	"listen_addresses":        "127.0.0.1",
	"unix_socket_directories": "",
	"logging_collector":       "off",
}

// reserved are the settings that this package decides and Options.Settings may not name.
var reserved = []string{"port", "data_directory", "hba_file", "external_pid_file"}

func checkSettings(settings map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		key := strings.ToLower(name)
		if _, isFixed := fixed[key]; isFixed || slices.Contains(reserved, key) {
			return fmt.Errorf("local PostgreSQL: setting %q is not open to choice, leave it out", name)
		}
	}
	return nil
}

// serverArgs are the arguments of postgres, in an order that does not change from run to run.
func serverArgs(data string, port int, settings map[string]string) []string {
	all := maps.Clone(defaults)
	for name, value := range settings {
		all[strings.ToLower(name)] = value
	}
	maps.Copy(all, fixed)
	args := []string{"-D", data, "-p", fmt.Sprint(port)}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "-c", name+"="+all[name])
	}
	return args
}
