mod delivery;
mod group;
mod history;
mod operator;
