/* How many streams a pair of ranks needs. */
#include <stdio.h>
#include <string.h>

#include "comm/transport/transport.h"

enum { MOST = 8 };
/* What one core of each side carries, rounded down (docs/design/data-plane.md, bounds on speed). */
static const double mac_gigabits = 20, tls_gigabits = 10;

int32_t wefti_mac_streams_for(double gigabits, int cores, int32_t ranks, bool encrypts) {
    double core = encrypts ? tls_gigabits : mac_gigabits;
    if (ranks < 1) ranks = 1;
    int32_t streams = 1, most = cores / ranks / 2;
    if (most > MOST) most = MOST;
    while (streams < most && streams * core * ranks < gigabits) streams++;
    return streams;
}

double wefti_interface_speed(const char *interface) {
    char path[128];
    long megabits = 0;
    if (!*interface || *interface == '.' || strchr(interface, '/')) return 0;
    int bytes = snprintf(path, sizeof path, "/sys/class/net/%s/speed", interface);
    FILE *file = bytes > 0 && (size_t)bytes < sizeof path ? fopen(path, "re") : NULL;
    if (file && fscanf(file, "%ld", &megabits) != 1) megabits = 0;
    if (file) fclose(file);
    return megabits > 0 ? (double)megabits / 1000 : 0;
}
