//go:build failpoint

package config

// A build with this tag kills itself where the variable says, see partition.Failpoints.
func init() { otherVariables = append(otherVariables, prefix+"FAILPOINT") }
