//! From a program to a plan: legalise, schedule, place, account.
