/* Messages between processes by UCX (openucx.org), in its tag-matching form. */
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

#endif
