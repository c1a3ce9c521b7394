/* MPI for processes that are not linked to it: loads the module for the MPI that started the
 * process. */
#ifndef WEFTI_MPI_MODULE_H
#define WEFTI_MPI_MODULE_H

#include "launch/env/env.h"
#include "weft/transport.h"

/* Opens messages between all processes of the job by weft-<flavour>.so; the flavour is "openmpi"
 * or "mpich". `folder`: where the module is (WEFT_MODULE_PATH); "": at its usual places. Collective
 * over the job. WEFT_E_NOT_FOUND: there is no such module, and the message lists the places
 * searched. WEFT_E_TIMEOUT: other processes have not come within `seconds`. The caller compares
 * out->size with the launcher's number: an MPI that does not recognise its launcher starts jobs of
 * one process. */
weft_status wefti_mpi_module_open(const char *flavour, const char *folder, double seconds,
                                  weft_transport *out) WEFT_CHECKED;

/* --- mpirun.c */

/* WEFT_E_ARG if the mpirun that the environment speaks of is not there. */
weft_status wefti_mpirun_check(const wefti_launcher *launcher) WEFT_CHECKED;
/* "rank 1 is not running": ranks of this host that do not run, though mpirun has started them.
 * NULL: none is known. wefti_free it. */
char *wefti_mpirun_missing(const wefti_launcher *launcher);

#endif
