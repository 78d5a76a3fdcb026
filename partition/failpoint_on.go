//go:build failpoint

package partition

func init() { atFailpoint = killed }
