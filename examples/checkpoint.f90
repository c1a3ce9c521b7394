! A program that saves its session while it trains, and goes on from there on any number of ranks, in Fortran 2018: the
! counterpart of checkpoint.c.
!
!     F=$(pkg-config --variable=fortran weft)      # the module and its C files
!     mpicc -c $(pkg-config --cflags weft) $F/weft_fortran*.c
!     mpifort $F/weft.f90 checkpoint.f90 weft_fortran*.o $(pkg-config --libs weft) -o checkpoint
!     mpirun -n 2 ./checkpoint run 20
!     mpirun -n 3 ./checkpoint run 40              # goes on, on other ranks
!
! With a third word, sliced, each rank writes files of its own, which say what they hold.
program checkpoint
    use, intrinsic :: iso_c_binding, only: c_bool
    use, intrinsic :: iso_fortran_env, only: error_unit, int64, real32, real64
    use weft
    implicit none
    integer, parameter :: batch = 12, features = 32, hidden = 64, every = 5
    integer(int64) :: steps
    integer :: status
    logical(c_bool) :: sliced
    real(real64) :: loss
    character(len=256) :: dir, text
    type(weft_world) :: world
    type(weft_plan) :: plan
    type(weft_graph) :: graph
    type(weft_session) :: session
    type(weft_session_options) :: options
    type(weft_value) :: x, y

    text = ''
    call get_command_argument(3, text)
    sliced = text == 'sliced'
    if (command_argument_count() /= 2 .and. .not. sliced) then
        write (error_unit, '(a)') 'usage: checkpoint FOLDER STEPS [sliced]'
        stop 2, quiet=.true.
    end if
    call get_command_argument(1, dir)
    call get_command_argument(2, text)
    read (text, *) steps
    call check(weft_world_join(world))
    call check(weft_plan_create(weft_world_size(world), plan))
    call check(weft_plan_optimizer(plan, 3))

    call check(weft_graph_create(graph))
    x = weft_input(graph, 'x', WEFT_F32, [batch, features])
    x = weft_dense(graph, 'out', weft_dense(graph, 'hidden', x, hidden, weft_tanh), 1)
    y = weft_reshape(graph, weft_input(graph, 'y', WEFT_F32, [batch]), [batch, 1])
    call weft_loss(graph, weft_mse(graph, x, y))

    options = weft_session_defaults()
    options%threads = 1
    call check(weft_session_create(graph, options, session, plan, world))
    status = weft_session_load(session, trim(dir), -1_int64)
    if (status /= WEFT_E_NOT_FOUND) call check(status)
    if (weft_world_rank(world) == 0) print '(a, i0)', 'begins at step ', weft_session_step_number(session)
    do while (weft_session_step_number(session) < steps)
        call feed(weft_session_step_number(session))
        call check(weft_session_step(session, 1e-3_real64, loss))
        if (mod(weft_session_step_number(session), int(every, int64)) /= 0) cycle
        call check(weft_session_save_wait(session)) ! of the step before, which is on the disk then
        call check(weft_session_save_start(session, trim(dir), keep=2_int64, sliced=sliced)) ! the next steps go on
    end do
    call check(weft_session_save_wait(session))
    call check(weft_session_save(session, trim(dir), keep=2_int64, sliced=sliced))
    if (weft_world_rank(world) == 0) print '(a, i0)', 'saved step ', weft_session_step_number(session)
    call weft_session_destroy(session)
    call weft_graph_destroy(graph)
    call weft_plan_destroy(plan)
    call weft_world_leave(world)

contains

    subroutine check(status)
        integer, intent(in) :: status
        if (status >= 0) return
        write (error_unit, '(2a)') 'checkpoint: ', weft_error_message()
        call weft_world_fail(world)
        stop 1, quiet=.true.
    end subroutine

    ! The samples follow from the step's number.
    subroutine feed(step)
        integer(int64), intent(in) :: step
        real(real32) :: sample(features, batch), target(batch)
        integer :: i, k
        do i = 1, batch
            do k = 1, features
                sample(k, i) = real(mod((step*batch + i - 1)*37 + (k - 1)*101, 64_int64), real32)/32 - 1
            end do
            target(i) = sum(sample(:, i)*cshift(sample(:, i), 1))/features
        end do
        call check(weft_session_feed(session, 'x', sample))
        call check(weft_session_feed(session, 'y', target))
    end subroutine
end program
