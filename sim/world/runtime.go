//go:build faketime

package main

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"time"
	"unsafe"
)

// These are in the runtime that package overlay makes.

//go:linkname simSeed runtime.simSeed
func simSeed(uint64)

//go:linkname simJoin runtime.simJoin
func simJoin(int)

//go:linkname simGet runtime.simGet
func simGet() unsafe.Pointer

//go:linkname simSet runtime.simSet
func simSet(unsafe.Pointer)

//go:linkname simSkew runtime.simSkew
func simSkew(int, int64)

//go:linkname simStop runtime.simStop
func simStop(int)

//go:linkname simGo runtime.simGo
func simGo(int)

// setTestingReader, which the linker hides, has all of package crypto read its random numbers from a reader.
//
//go:linkname setTestingReader crypto/internal/rand.SetTestingReader
func setTestingReader(io.Reader)

// seedAll makes all random numbers of the program a function of the seed.
func seedAll(seed uint64) {
	runtime.MemProfileRate = 0 // what is allocated would take numbers
	runtime.GC()               // it starts goroutines, which are to be in no group
	simSeed(seed)
	var all [32]byte
	binary.LittleEndian.PutUint64(all[:], seed)
	setTestingReader(rand.NewChaCha8(all))
}

// collect collects garbage now and then. The runtime would do it within an allocation: of a goroutine that writes to a map, as it may be,
// and then another one could go on.
func collect() {
	const enough = 256 << 20
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	for last := uint64(0); ; time.Sleep(100 * time.Millisecond) {
		if metrics.Read(allocated); allocated[0].Value.Uint64()-last > enough {
			runtime.GC()
			last = allocated[0].Value.Uint64()
		}
	}
}

// as calls f in a group: what it starts is in that too. Group 0 is nobody's, and never stops.
func as(group int, f func()) {
	was := simGet()
	simJoin(group)
	f()
	simSet(was)
}
