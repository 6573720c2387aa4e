// A wall clock that runs and can be set, for a redis-server that is started with it in LD_PRELOAD: the file that
// CLOCK_OFFSET_FILE names holds 8 bytes, the microseconds to add. The monotonic clock stays as it is.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *added;

static long long offset(void) {
	if (!added) {
		const char *name = getenv("CLOCK_OFFSET_FILE");
		int fd = name ? open(name, O_RDONLY) : -1;
		void *p = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
		if (p == MAP_FAILED) abort(); // a clock that cannot be set would pass every test
		close(fd);
		added = p;
	}
	return *added;
}

int clock_gettime(clockid_t c, struct timespec *ts) {
	int r = syscall(SYS_clock_gettime, c, ts);
	if (r == 0 && (c == CLOCK_REALTIME || c == CLOCK_REALTIME_COARSE)) {
		long long us = ts->tv_sec * 1000000LL + ts->tv_nsec / 1000 + offset();
		ts->tv_sec = us / 1000000;
		ts->tv_nsec = us % 1000000 * 1000;
	}
	return r;
}

int gettimeofday(struct timeval *tv, void *tz) {
	struct timespec ts;
	(void)tz;
	int r = clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return r;
}

time_t time(time_t *t) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (t) *t = ts.tv_sec;
	return ts.tv_sec;
}
