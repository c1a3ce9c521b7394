/* A member: what its thread (member_states.c) and the program that uses the world share. */
#ifndef WEFTI_MEMBER_STATE_H
#define WEFTI_MEMBER_STATE_H

#include "launch/member/caller.h"

typedef enum wefti_member_state {                       /* rows of the table */
                                  WEFTI_MEMBER_JOINING, /* no rank yet */
                                  WEFTI_MEMBER_IN,      /* has its rank */
                                  WEFTI_MEMBER_LOST, /* has its rank, and calls a scheduler that is
                                                        lost */
                                  WEFTI_MEMBER_PARTED, /* the scheduler has said goodbye */
                                  WEFTI_MEMBER_FAILED, /* `reason` says why */
} wefti_member_state;

typedef struct wefti_member_entry {
    uint64_t number; /* 0: none */
    unsigned char *data;
    size_t bytes;
} wefti_member_entry;

struct wefti_member {
    wefti_caller caller;
    wefti_join join; /* as it is sent; with rank and generation once they are known */
    int64_t leave_ns;
    wefti_world_message placed;
    int32_t *host;
    wefti_comm *comm;
    wefti_position *position;
    wefti_member_entry last, now; /* kept until the next: a new scheduler may need them */
    bool now_sent;
    void *entries; /* where the answer to `now` goes; NULL: it is there */
    char *giving_up;
    weft_status fail_status;
    int32_t failed; /* the rank that it names */
    bool given_up;  /* said so, to the last byte */
    bool leaving, leave_sent;
    const wefti_call_records *records; /* said when leaving; borrowed until the end */
    int64_t placed_ns;
    int64_t beat_ns; /* the last heartbeat; 0: one is due */
};

#endif
