/* Messages between processes: by UCX (openucx.org), in its tag-matching form, and over TCP with
 * frames that the job's secret authenticates and may encrypt. */
#ifndef WEFTI_UCX_H
#define WEFTI_UCX_H

#include "comm/comm.h"
#include "weft/transport.h"

/* Collective. `exchange` is copied, and serves the transport's own exchange too; what it leads to
 * must live as long. `interface`: the only network interface that is listened on and used; NULL or
 * "": loopback. UCX_TLS in the environment chooses among UCX's own roads; without it they are all
 * but shared memory (for which there is wefti_comm_host). The memory of a receive from a rank that
 * has died is free when its test has said so. WEFT_E_NO_IMPL where weft is built without UCX, or
 * its library is not installed. */
weft_status wefti_ucx_transport(int32_t rank, int32_t size, const wefti_exchange *exchange,
                                const char *interface, weft_transport *out) WEFT_CHECKED;

typedef struct wefti_mac_options {
    int32_t rank, size;
    wefti_exchange exchange; /* authenticated; as of wefti_ucx_transport */
    unsigned char key[32];   /* of this job and this world only, and the same on all ranks */
    bool encrypts;           /* the form `tls`, else `mac` */
    int32_t streams;         /* for each pair, the fewer of both; at most 16; 0: one */
    const char *interface;   /* to listen on; "" loopback */
    double seconds;          /* for all ranks to connect */
    bool (*goes_on)(void *); /* may be NULL; false: stops waiting for them */
    void *context;
} wefti_mac_options;
/* Collective: connects all pairs of ranks, and listens no more. WEFT_E_NO_IMPL without OpenSSL.
 * Each stream but the first has a thread on each rank. */
weft_status wefti_mac_transport(const wefti_mac_options *options, weft_transport *out) WEFT_CHECKED;
/* How many streams a pair needs so that cores fill the link: 1 if its speed is not known. `ranks`:
 * that share the cores and the interface of this host. */
int32_t wefti_mac_streams_for(double gigabits, int cores, int32_t ranks, bool encrypts);
/* In Gbit/s, as its driver says; 0: it does not. */
double wefti_interface_speed(const char *interface);

#endif
